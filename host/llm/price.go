package llm

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Price is what a model costs, in millionths of a US dollar per million
// tokens: "2.50/10" US dollars is Price{2_500_000, 10_000_000}.
type Price struct{ Prompt, Completion int64 }

// Bounds that keep the product below within an int64.
const (
	maxPrice  = 1_000_000_000 // 1000 US dollars per million tokens
	maxTokens = 1 << 32
)

// Cost is rounded up, in millionths of a US dollar.
func (p Price) Cost(promptTokens, completionTokens int64) int64 {
	const million = 1_000_000
	a := (clampTokens(promptTokens)*p.Prompt + million - 1) / million
	b := (clampTokens(completionTokens)*p.Completion + million - 1) / million
	return a + b
}

// clampTokens bounds what a server claims.
func clampTokens(n int64) int64 { return min(max(n, 0), maxTokens) }

// ParsePrices reads "model=IN/OUT,model2=IN/OUT", in US dollars per million
// prompt and completion tokens.
func ParsePrices(s string) (map[string]Price, error) {
	out := map[string]Price{}
	for item := range strings.SplitSeq(s, ",") {
		if strings.TrimSpace(item) == "" {
			continue
		}
		model, price, ok := strings.Cut(strings.TrimSpace(item), "=")
		in, comp, both := strings.Cut(price, "/")
		if !ok || !both || model == "" {
			return nil, fmt.Errorf("parse prices: %q: want model=IN/OUT", item)
		}
		p, err := parsePrice(in, comp)
		if err != nil {
			return nil, fmt.Errorf("parse prices: %q: %w", item, err)
		}
		out[model] = p
	}
	return out, nil
}

func parsePrice(in, out string) (Price, error) {
	var micro [2]int64
	for i, part := range []string{in, out} {
		usd, err := strconv.ParseFloat(part, 64)
		if err != nil || !(usd >= 0 && usd*1e6 <= maxPrice) { // not a NaN either
			return Price{}, fmt.Errorf("%q is not a price in US dollars per million tokens", part)
		}
		micro[i] = int64(math.Round(usd * 1e6))
	}
	return Price{micro[0], micro[1]}, nil
}

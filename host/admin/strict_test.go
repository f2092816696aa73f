package admin_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/ratoon-project/ratoon/host/admin"
	"github.com/ratoon-project/ratoon/protocol"
)

// attempt is a request that the document forbids, or one that it allows on
// what does not exist.
type attempt struct {
	name, method, target string
	kind, body           string
	key                  []string
	statuses             []int // empty: any that is not the server's fault
}

// shape: the request itself is wrong. value: so it is, but that the thing it
// names does not exist may be found first.
var (
	shape = []int{400}
	value = []int{400, 404, 413}
)

// hostile are strings that do not fit most patterns.
var hostile = []string{"", "etc", "../x", "A", "SIG", "a\x00b", "\xf0\x9f\x92\xa9", "cp-", strings.Repeat("x", 5000)}

// fits tells whether the document allows a string.
func fits(t *testing.T, schema node, s string) bool {
	t.Helper()
	matches := func(schema node) bool {
		pattern, ok := schema["pattern"].(string)
		return !ok || regexp.MustCompile(pattern).MatchString(s)
	}
	if not, ok := schema["not"].(node); ok && matches(not) {
		return false
	}
	if all, ok := schema["enum"].([]any); ok && !slices.Contains(all, any(s)) {
		return false
	}
	n := utf8.RuneCountInString(s)
	least, _ := schema["minLength"].(int)
	most, ok := schema["maxLength"].(int)
	return matches(schema) && n >= least && (!ok || n <= most)
}

// attempts are all that the document forbids of an operation.
func attempts(t *testing.T, o operation) []attempt {
	t.Helper()
	right := attempt{method: o.method, target: o.target(t), kind: o.kind}
	switch {
	case o.body != nil:
		right.body = encode(t, sample(t, o.body))
	case o.kind != "":
		right.body = "x"
	}
	right.name = "as documented"
	all := []attempt{right}
	add := func(name string, statuses []int, change func(*attempt)) {
		a := right
		a.name, a.statuses = name, statuses
		change(&a)
		all = append(all, a)
	}
	for _, v := range o.variables {
		for _, s := range hostile[1:] {
			if !fits(t, v.schema, s) {
				add(fmt.Sprintf("%s %.20q", v.name, s), value, func(a *attempt) {
					a.target = strings.Replace(a.target, sample(t, v.schema).(string), url.PathEscape(s), 1)
				})
			}
		}
	}
	set := func(query string) func(*attempt) {
		return func(a *attempt) {
			address, old, _ := strings.Cut(a.target, "?")
			a.target = address + "?" + query
			if name, _, _ := strings.Cut(query, "="); old != "" && !strings.HasPrefix(old, name+"=") {
				a.target += "&" + old
			}
		}
	}
	add("unknown parameter", shape, set("unknown=1"))
	add("query that cannot be read", shape, set("%zz"))
	for _, p := range o.query {
		fit := p.name + "=" + fmt.Sprint(sample(t, p.schema))
		add(p.name+" twice", shape, set(fit+"&"+fit))
		if p.required {
			add("no "+p.name, shape, func(a *attempt) { a.target, _, _ = strings.Cut(a.target, "?") })
		}
		for _, s := range badQuery(t, p.schema) {
			statuses := shape
			if p.schema["type"] == "string" {
				statuses = value
			}
			add(fmt.Sprintf("%s=%.20q", p.name, s), statuses, set(p.name+"="+url.QueryEscape(s)))
		}
	}
	if o.key {
		for name, keys := range map[string][]string{"empty key": {""}, "long key": {strings.Repeat("k", 256)}, "two keys": {"a", "b"}} {
			add(name, shape, func(a *attempt) { a.key = keys })
		}
	}
	if o.kind != "" {
		add("other type", shape, func(a *attempt) { a.kind = "text/plain" })
		add("type that cannot be read", shape, func(a *attempt) { a.kind = "a/b/c" })
	}
	if o.kind != "" && o.required {
		add("no body", value, func(a *attempt) { a.body = "" })
	}
	if o.body == nil {
		return all
	}
	for _, body := range []string{"{", "null", "[]", `"x"`, "5", right.body + " {}", "\xff", "\ufeff" + right.body, strings.Repeat("[", 20000), "{'a': 1}", `{"": 1}`} {
		add(fmt.Sprintf("body %.20q", body), shape, func(a *attempt) { a.body = body })
	}
	add("too large", []int{413}, func(a *attempt) { a.body = right.body + strings.Repeat(" ", 1<<20) })
	for _, b := range badObjects(t, o.body) {
		add("body "+b.text[:min(len(b.text), 80)], b.statuses, func(a *attempt) { a.body = b.text })
	}
	return all
}

func badQuery(t *testing.T, schema node) []string {
	t.Helper()
	switch schema["type"] {
	case "boolean":
		return []string{"", "maybe", "True", "1"}
	case "integer":
		return []string{"", "-1", "x", "1.5", "0x1", "9007199254740992", "99999999999999999999"}
	}
	return slices.DeleteFunc(slices.Clone(hostile), func(s string) bool { return fits(t, schema, s) })
}

// bad is JSON that does not fit a schema.
type bad struct {
	text     string
	statuses []int
}

// badObjects are objects with one thing wrong each.
func badObjects(t *testing.T, schema node) (out []bad) {
	t.Helper()
	right := sample(t, schema).(node)
	with := func(name, text string) string { // as the last member
		b := encode(t, without(right, name))
		return strings.Replace(b[:len(b)-1]+","+encode(t, name)+":"+text+"}", "{,", "{", 1)
	}
	out = append(out, bad{with("unknown", "1"), shape})
	for name, s := range properties(schema) {
		fit := encode(t, sample(t, s.(node)))
		out = append(out,
			bad{with(strings.ToUpper(name), fit), shape},
			bad{with(name, fit+","+encode(t, name)+":"+fit), shape})
		for _, b := range badValues(t, s.(node)) {
			out = append(out, bad{with(name, b.text), b.statuses})
		}
		if required(schema, name) {
			out = append(out, bad{encode(t, without(right, name)), shape})
		}
	}
	return out
}

func without(n node, name string) node {
	out := node{}
	for k, v := range n {
		if k != name {
			out[k] = v
		}
	}
	return out
}

func badValues(t *testing.T, schema node) (out []bad) {
	t.Helper()
	kind := schema["type"].(string)
	for other, text := range map[string]string{"string": `"x"`, "integer": "5", "boolean": "true", "array": "[]", "object": "{}", "null": "null"} {
		if other != kind && (other != "integer" || kind != "number") {
			out = append(out, bad{text, shape})
		}
	}
	switch kind {
	case "object":
		if items, ok := schema["additionalProperties"].(node); ok {
			for _, b := range badValues(t, items) {
				out = append(out, bad{`{"a":` + b.text + "}", b.statuses})
			}
			return append(out, bad{`{"a":"x","a":"x"}`, shape})
		}
		return append(out, badObjects(t, schema)...)
	case "array":
		for _, b := range badValues(t, schema["items"].(node)) {
			out = append(out, bad{"[" + b.text + "]", b.statuses})
		}
	case "integer":
		out = append(out, bad{"1.5", shape}, bad{"9007199254740992", shape})
		fallthrough
	case "number":
		out = append(out, bad{"1e400", shape}, bad{"-1", value})
		switch most := schema["maximum"].(type) {
		case int:
			out = append(out, bad{fmt.Sprint(most + 1), value})
		case float64:
			out = append(out, bad{fmt.Sprint(most + 1), value})
		}
	case "string":
		for _, s := range append(hostile, strings.Repeat("é", 300)) {
			if !fits(t, schema, s) {
				out = append(out, bad{encode(t, s), value})
			}
		}
	}
	return out
}

func encode(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// try sends a request and holds its answer to the document: an error is the
// typed one.
func try(t *testing.T, client *http.Client, a attempt) {
	t.Helper()
	var body io.Reader // a nil one has no length
	if a.body != "" {
		body = strings.NewReader(a.body)
	}
	req, err := http.NewRequestWithContext(t.Context(), a.method, "http://x"+a.target, body)
	if err != nil {
		t.Error(err)
		return
	}
	if a.kind != "" {
		req.Header.Set("Content-Type", a.kind)
	}
	req.Header[admin.HeaderKey] = a.key
	resp, err := client.Do(req)
	if err != nil {
		t.Error(err)
		return
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
		return
	}
	if len(a.statuses) > 0 && !slices.Contains(a.statuses, resp.StatusCode) {
		t.Errorf("got %d, want one of %v\n%s", resp.StatusCode, a.statuses, b)
	}
	if resp.StatusCode >= 400 {
		typed(t, resp, b)
	}
}

// typed holds that an answer is the error of the document.
func typed(t *testing.T, resp *http.Response, b []byte) {
	t.Helper()
	var e admin.Error
	d := json.NewDecoder(strings.NewReader(string(b)))
	d.DisallowUnknownFields()
	if err := d.Decode(&e); err != nil {
		t.Errorf("%s with a body that is no error: %v\n%.200s", resp.Status, err, b)
		return
	}
	if !slices.Contains(protocol.Codes(), e.Code) || e.Message == "" || e.Remedy == "" || resp.Header.Get("Content-Type") != "application/json" {
		t.Errorf("%s %s with %+v", resp.Status, resp.Header.Get("Content-Type"), e)
	}
	// 501 is what this test's VMM answers.
	if resp.StatusCode >= 500 && resp.StatusCode != http.StatusNotImplemented {
		t.Errorf("%s: %+v", resp.Status, e)
	}
	if len(b) > 2000 {
		t.Errorf("an error of %d bytes gives back what was sent", len(b))
	}
}

// files counts the open files of this process.
func files(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// settled waits until no more files are open than before.
func settled(t *testing.T, before int) {
	t.Helper()
	for began := time.Now(); files(t) > before; time.Sleep(time.Millisecond) {
		if time.Since(began) > 10*time.Second {
			t.Fatalf("%d files are open, %d were before", files(t), before)
		}
	}
}

// TestStrict: whatever the document does not allow is refused, and typed.
func TestStrict(t *testing.T) {
	c, _ := serve(t)
	client := plain(c.Socket())
	before := files(t)
	for _, o := range operations(t) {
		t.Run(o.String(), func(t *testing.T) {
			for _, a := range attempts(t, o) {
				t.Run(a.name, func(t *testing.T) { try(t, client, a) })
			}
		})
	}
	settled(t, before)
}

// TestMethods: a path takes the methods of the document, and says so.
func TestMethods(t *testing.T) {
	c, _ := serve(t)
	client := plain(c.Socket())
	allowed := map[string][]string{}
	targets := map[string]string{}
	for _, o := range operations(t) {
		allowed[o.path] = append(allowed[o.path], o.method)
		targets[o.path] = o.target(t)
	}
	for path, methods := range allowed {
		for _, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "QUERY"} {
			if slices.Contains(methods, method) {
				continue
			}
			req, err := http.NewRequestWithContext(t.Context(), method, "http://x"+targets[path], nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil {
				t.Fatal(err)
			}
			got := strings.Split(resp.Header.Get("Allow"), ", ")
			slices.Sort(got)
			slices.Sort(methods)
			if resp.StatusCode != http.StatusMethodNotAllowed || !slices.Equal(got, methods) {
				t.Errorf("%s %s: got %s, Allow %v, want 405 and %v", method, path, resp.Status, got, methods)
			}
			typed(t, resp, b)
		}
	}
}

// TestCrowd: two hundred clients at once, each with another request.
func TestCrowd(t *testing.T) {
	c, _ := serve(t)
	client := plain(c.Socket())
	before := files(t)
	var all []attempt
	for _, o := range operations(t) {
		all = append(all, attempts(t, o)...)
	}
	var crowd sync.WaitGroup
	for i := range 200 {
		crowd.Go(func() {
			for j := range 5 {
				try(t, client, all[(i*5+j)*7%len(all)])
			}
		})
	}
	crowd.Wait()
	settled(t, before)
}

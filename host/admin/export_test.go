package admin

// Routes lists what is served.
func Routes() []string {
	var out []string
	for _, r := range routes() {
		key := ""
		if r.creates {
			key = " with a key"
		}
		out = append(out, r.method+" "+r.path+key)
	}
	return out
}

package daemon

// PutAnswer stores an answer as it is.
func (d *Daemon) PutAnswer(key string, a Answer) error { return d.putAnswer("test", key, a) }

"""Files → events: what a file is, its bytes, the scan, heads, traces, the cache."""

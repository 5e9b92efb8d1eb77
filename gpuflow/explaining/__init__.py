"""What ``gpuflow.explain`` returns: text, a table of steps, records, a page (design 0043)."""

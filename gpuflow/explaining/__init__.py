"""Results of ``gpuflow.explain``: text, a table of steps, records, a page (design 0043)."""

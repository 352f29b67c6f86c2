"""One run of a workload or of commands: where, with what, and what its folder keeps."""

"""The basis of every NIC's firmware and host library: interfaces, completions, timers, host memory, codecs."""

"""What every NIC's firmware and host library stand on: their interfaces, completions, timers, host memory, codecs."""

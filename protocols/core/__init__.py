"""Common basis of firmware and host libraries: interfaces, completions, timers, host memory, codecs."""

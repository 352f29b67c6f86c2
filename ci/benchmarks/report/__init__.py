"""``ci/bench report``: time, memory and size of reports of big runs."""

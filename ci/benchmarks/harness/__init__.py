"""Parts that every benchmark uses: sessions, rows, tables, targets, contenders, processes and traffic."""

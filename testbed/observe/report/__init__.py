"""Pages on runs, studies and reproductions: self-contained HTML files."""

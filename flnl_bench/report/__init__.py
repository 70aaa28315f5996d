"""A static site of a results folder: `gather` reads, `site` writes pages from templates."""

"""A static site of a results folder: `gather` makes the contents, `site` writes pages from templates."""

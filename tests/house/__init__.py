"""The house checks itself: layers, shape, words, generated files, and crossings into Python."""

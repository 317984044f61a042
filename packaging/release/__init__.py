"""A release: everything that is published of a commit, made and checked in one go. tools/release runs it."""

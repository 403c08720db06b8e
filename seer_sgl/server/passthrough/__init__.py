"""Requests that one engine receives unmodified, and whose clients receive its reply unmodified.

They are those that another chunk could not continue, or that this server does not know.
"""

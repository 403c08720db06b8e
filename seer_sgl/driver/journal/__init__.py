"""The journal of a rollout: its returned chunks, on disk, so that a later process can continue.

A journal is a folder with a lock and one append-only file: blocks of records (blocks.py), of which
the first is the header (records.py). A thread writes and syncs (writer.py).
"""

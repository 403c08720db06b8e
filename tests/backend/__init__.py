"""Tests of the room backend."""

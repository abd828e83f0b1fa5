"""Masking."""

"""The reference engine: a small, honest LLM server to measure against.

A real decoder, a paged KV cache read through block tables, and a scheduler that decides once per step. The
engine runs in a process of its own; HTTP runs beside it. Importing this package imports no torch.
"""

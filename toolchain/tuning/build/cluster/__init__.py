"""Candidates compiled by the workers of a Dask cluster: Dask carries jobs, and our own processes there do them.

Each of its workers keeps a crew like the one of this machine, so deadlines and crashes of the compiler stay ours: a
task of Dask's that runs cannot be stopped. Searching, linking, measuring and records stay here.
"""

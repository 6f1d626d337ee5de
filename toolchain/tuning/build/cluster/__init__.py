"""Compiles candidates on the workers of a Dask cluster: Dask transports jobs, and our own processes there do them.

Each Dask worker has a crew like the one of this machine, which handles deadlines and crashes of the compiler: a running
Dask task cannot be stopped. Searching, linking, measuring and recording stay on this machine.
"""

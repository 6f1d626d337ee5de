"""Layers whose weights are mostly zero in blocks: only the others are read and multiplied.

A block is one vector of weights: as many outputs as a vector has lanes, of one input and one tap of the filter. Which
blocks are not zero is read from lists beside the weights, so layers with different patterns share a kernel.

The pixels (or rows) of a tile are first gathered: what one input and tap multiplies lies together then, whatever the
stride and the padding are. A list of vectors would otherwise touch as many lines of the cache for each vector as the
tile has pixels. Each vector is loaded once for a tile.
"""

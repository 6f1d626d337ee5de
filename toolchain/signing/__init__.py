"""Signed releases: statements about bundles with OpenSSH signatures, and the check that a trusted signer made them."""

"""One file per loop; each runs in the environment of its peer, so none imports another part of benchmarks."""

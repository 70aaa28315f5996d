"""Suite files for the tests, and the runs that they ask for."""

from flnl_bench.suite.grid import make_grid
from flnl_bench.suite.suite_file import read_suite

GOOD = 'methods = ["fedavg"]\nsettings = ["clean"]\n'
TINY = "[training]\nsamples = 200\nclients = 4\nfraction = 0.5\nrounds = 2\nepochs = 1\n"


def grid_of(text, tmp_path):
    """Return the planned runs of a suite file with this text."""
    file = tmp_path / "it.toml"
    file.write_text(text)
    return make_grid(read_suite(file), out=tmp_path)

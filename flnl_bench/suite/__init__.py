"""Many runs from one file, over processes or machines."""

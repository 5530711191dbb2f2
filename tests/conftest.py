pytest_plugins = ["outlast.testing.pytest_plugin"]

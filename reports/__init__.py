"""Reports render: they read run folders through loadgen and compute no figure of their own."""

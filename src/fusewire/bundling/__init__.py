"""Programs as files: save them to bundles, open them elsewhere, and lock what was chosen."""

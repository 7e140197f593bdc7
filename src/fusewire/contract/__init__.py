"""What a plugin author imports: backends, frontends, regions, tuning, extensions."""

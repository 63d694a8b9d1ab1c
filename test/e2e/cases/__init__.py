"""The cases, by theme. Each module's cases(session) lists its own."""

"""Models: found, fetched and loaded; decoders of our own and those of transformers; tokenizers and chat templates."""

"""Images: decoding, crops, views, hashes."""

"""The screen of `gatelock top`. `top_app` alone imports textual, which the extra `tui` brings."""

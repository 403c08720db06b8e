"""The link between drivers and the plugin inside SGLang: contract, messages, connections."""

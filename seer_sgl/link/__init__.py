"""What drivers and the plugin inside SGLang know of each other: contract, messages, connections."""

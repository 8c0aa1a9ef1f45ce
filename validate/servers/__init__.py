"""A live server measured beside its prediction: `roofline validate server`."""

"""gRPC interfaces of the product and the code generated from them."""

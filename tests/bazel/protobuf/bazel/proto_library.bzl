"""Bazel 4's native proto_library under the name that protobuf gives it."""

proto_library = native.proto_library

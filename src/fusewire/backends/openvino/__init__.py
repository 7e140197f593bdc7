"""OpenVINO on the CPU, with open shapes."""

"""OpenVINO on the CPU: convolutions and small graphs at their best, with shapes left open."""

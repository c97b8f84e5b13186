"""02: is every setting read and sound, and which libnccl does a rank load?"""

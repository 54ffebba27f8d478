"""What has to hold on a device, each check against float64 on the CPU."""

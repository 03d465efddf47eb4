/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RDMA devices and GPUs as the kernel shows them: drivers, firmware, device files, and the ways
 * by which a NIC reaches GPU memory.
 */
#include <stdlib.h>
#include <string.h>

#include "cli/doctor.h"
#include "lib/cuda/cuda.h"
#include "lib/transport/transport.h"

#define TEXT_BYTES 800

static const char *read_below(struct doctor *doctor, const char *folder, const char *name,
			      const char *file)
{
	char path[400];
	snprintf(path, sizeof(path), "%s/%.100s/%s", folder, name, file);
	return host_read(doctor, path);
}

uint32_t host_rdma_count(struct doctor *doctor)
{
	const char *const *names;
	return host_list(doctor, "/sys/class/infiniband", "", &names);
}

/* "mlx5_core 24.10-1.1.4, firmware 28.39.1002", or "over eth0" of a software device. */
static void put_driver(struct doctor *doctor, const char *device, struct writer *text)
{
	char path[400];

	snprintf(path, sizeof(path), "/sys/class/infiniband/%.100s/device/driver", device);
	const char *driver = host_link_name(doctor, path);
	const char *parent = read_below(doctor, "/sys/class/infiniband", device, "parent");
	const char *firmware = read_below(doctor, "/sys/class/infiniband", device, "fw_ver");
	if (driver == NULL && parent != NULL)
		write_format(text, "over %s", parent);
	else
		write_format(text, "%s", driver != NULL ? driver : "driver unknown");
	/* The kernel's own drivers have no version but the kernel's. */
	const char *version =
		driver != NULL ? read_below(doctor, "/sys/module", driver, "version") : NULL;
	if (version != NULL)
		write_format(text, " %s", version);
	if (firmware != NULL && firmware[0] != '\0')
		write_format(text, ", firmware %s", firmware);
}

static void rdma_text(struct doctor *doctor, const char *const *names, uint32_t count, char *out,
		      size_t room)
{
	struct writer text = writer_fixed(out, room - 1);

	for (uint32_t i = 0; i < count; i++) {
		write_format(&text, "%s%s (", i > 0 ? ", " : "", names[i]);
		put_driver(doctor, names[i], &text);
		write_format(&text, ")");
	}
	out[text.count] = '\0';
}

/* A card whose RDMA driver isn't there: Mellanox Ethernet or InfiniBand, Amazon's EFA. */
static const char *idle_card(struct doctor *doctor)
{
	const char *const *names;
	uint32_t count = host_list(doctor, "/sys/bus/pci/devices", "", &names);

	for (uint32_t i = 0; i < count; i++) {
		const char *vendor = read_below(doctor, "/sys/bus/pci/devices", names[i], "vendor");
		const char *class = read_below(doctor, "/sys/bus/pci/devices", names[i], "class");
		const char *device = read_below(doctor, "/sys/bus/pci/devices", names[i], "device");
		if (vendor == NULL || class == NULL || device == NULL)
			continue;
		char path[400];
		snprintf(path, sizeof(path), "/sys/bus/pci/devices/%.100s/infiniband", names[i]);
		bool mellanox = strcmp(vendor, "0x15b3") == 0 && strncmp(class, "0x02", 4) == 0;
		bool efa = strcmp(vendor, "0x1d0f") == 0 && strncmp(device, "0xefa", 5) == 0;
		if ((mellanox || efa) && !host_has(doctor, path))
			return arena_text(&doctor->arena, "%s (%s)", names[i],
					  efa ? "efa" : "mlx5_ib");
	}
	return NULL;
}

static void rdma_absent(struct doctor *doctor, const char *idle)
{
	if (idle != NULL)
		doctor_say(doctor, HEALTH_WARNING, "rdma",
			   "without its RDMA driver updates go through the kernel's TCP, which "
			   "copies every byte",
			   "`modprobe` the driver in brackets, and install rdma-core",
			   "the card at %s has no RDMA device", idle);
	else
		doctor_say(doctor, HEALTH_NOTE, "rdma",
			   "updates to other hosts go through the kernel's TCP, which copies every "
			   "byte",
			   "nothing on a host without an RDMA NIC; in a container, pass "
			   "/dev/infiniband in",
			   "there is no RDMA device");
}

static void rdma(struct doctor *doctor)
{
	const char *const *names, *const *files;
	uint32_t count = host_list(doctor, "/sys/class/infiniband", "", &names);
	uint32_t file_count = host_list(doctor, "/dev/infiniband", "uverbs", &files);
	const char *idle = idle_card(doctor);
	char text[TEXT_BYTES];

	if (count == 0 || idle != NULL)
		rdma_absent(doctor, idle);
	if (count == 0)
		return;
	rdma_text(doctor, names, count, text, sizeof(text));
	if (file_count < count)
		doctor_say(doctor, HEALTH_PROBLEM, "rdma",
			   "libibverbs opens a device by its file /dev/infiniband/uverbs*",
			   "`modprobe ib_uverbs`; in a container, pass /dev/infiniband in "
			   "(docker --device=/dev/infiniband)",
			   "%u of %u devices have no file: %s", count - file_count, count, text);
	else
		doctor_say(doctor, HEALTH_OK, "rdma", "", "", "%s", text);
}

/* ---------------------------------------------------------------------------- GPUs */

static uint32_t gpu_count(struct doctor *doctor)
{
	const char *const *names;
	uint32_t count = host_list(doctor, "/dev", "nvidia", &names), gpus = 0;
	for (uint32_t i = 0; i < count; i++)
		gpus += names[i][6] >= '0' && names[i][6] <= '9';
	return gpus;
}

static void gpu_paths(struct doctor *doctor)
{
	bool peermem = host_has(doctor, "/sys/module/nvidia_peermem");
	bool dmabuf = host_kernel_at_least(doctor, 5, 12);

	if (host_rdma_count(doctor) == 0)
		return;
	if (peermem || dmabuf)
		doctor_say(doctor, HEALTH_OK, "gpudirect", "", "",
			   "dma-buf: %s, nvidia_peermem: %s",
			   dmabuf ? "the kernel has it" : "no, Linux 5.12 has it",
			   peermem ? "loaded" : "not loaded");
	else
		doctor_say(
			doctor, HEALTH_WARNING, "gpudirect",
			"a NIC can't reach GPU memory: every byte takes a way through host memory",
			"`modprobe nvidia_peermem`, or Linux 5.12 or newer with NVIDIA's open "
			"kernel module",
			"neither dma-buf (Linux 5.12) nor nvidia_peermem is there");
}

static void gpu(struct doctor *doctor)
{
	const char *version = host_read(doctor, "/proc/driver/nvidia/version");
	const char *number = version != NULL ? strstr(version, "  ") : NULL;
	const char *visible = getenv("CUDA_VISIBLE_DEVICES");
	uint32_t count = gpu_count(doctor);

	if (count == 0 && version == NULL) {
		doctor_say(doctor, HEALTH_OK, "gpu", "", "",
			   "no NVIDIA GPU: weights are in host memory");
		return;
	}
	if (count == 0) {
		doctor_say(doctor, HEALTH_WARNING, "gpu",
			   "CUDA finds no GPU without /dev/nvidia0 and the like",
			   "in a container, start it with --gpus all (or runtime nvidia)",
			   "the NVIDIA driver is loaded, but there are no device files");
		return;
	}
	doctor_say(doctor, HEALTH_OK, "gpu", "", "", "%u NVIDIA GPU%s, driver%.*s", count,
		   count == 1 ? "" : "s",
		   number != NULL ? (int)MIN(strcspn(number + 2, " ") + 1, 24) : 8,
		   number != NULL ? number + 1 : " unknown");
	if (visible != NULL && (visible[0] == '\0' || strcmp(visible, "-1") == 0))
		doctor_say(doctor, HEALTH_WARNING, "gpu", "it hides every GPU from this process",
			   "unset it, or name the rank's GPU", "CUDA_VISIBLE_DEVICES is '%s'",
			   visible);
	if (!cuda_built_in())
		doctor_say(doctor, HEALTH_WARNING, "gpu",
			   "weights in GPU memory are refused; the ranks must keep them in host "
			   "memory",
			   "build it where the CUDA toolkit is: make looks for nvcc",
			   "this build has no CUDA");
	gpu_paths(doctor);
}

void doctor_devices(struct doctor *doctor)
{
	rdma(doctor);
	gpu(doctor);
}

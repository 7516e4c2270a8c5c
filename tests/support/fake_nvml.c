/* A libnvidia-ml.so.1 that answers from the file FAKE_NVML names, for machines without a GPU:
 *   gpu BDF UUID MINOR BYTES MILLIWATTS CAPABILITY DEVICE_ID NAME...
 *   mig UUID GPU_INSTANCE COMPUTE_INSTANCE BYTES        (of the gpu above)
 * NAME `lost` is a GPU that fell off the bus. FAKE_NVML=hang never answers, FAKE_NVML=fail has no driver. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, UNKNOWN = 999, NOT_SUPPORTED = 3, NOT_FOUND = 6, DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15 };

struct part {
  char uuid[96];
  unsigned gi, ci;
  unsigned long long bytes;
};

struct gpu {
  struct part self;
  char bdf[32], name[96];
  unsigned minor, milliwatts, capability, device_id, parts;
  struct part mig[8];
};

struct pci_info {
  char legacy[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};

struct memory { unsigned long long total, free, used; };

static struct gpu gpus[16];
static unsigned count;

int nvmlInitWithFlags(unsigned flags) {
  const char *path = getenv("FAKE_NVML");
  if (!path || !strcmp(path, "fail")) return DRIVER_NOT_LOADED + 0 * flags;
  if (!strcmp(path, "hang")) for (;;) pause();
  FILE *file = fopen(path, "r");
  char line[512];
  if (!file) return UNKNOWN;
  while (fgets(line, sizeof line, file)) {
    struct gpu *g = &gpus[count];
    if (sscanf(line, "gpu %31s %95s %u %llu %u %u %x %95[^\n]", g->bdf, g->self.uuid, &g->minor, &g->self.bytes,
               &g->milliwatts, &g->capability, &g->device_id, g->name) == 8) {
      count++;
    } else if (count) {
      struct gpu *last = &gpus[count - 1];
      struct part *p = &last->mig[last->parts];
      if (sscanf(line, "mig %95s %u %u %llu", p->uuid, &p->gi, &p->ci, &p->bytes) == 4) last->parts++;
    }
  }
  fclose(file);
  return OK;
}

int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { return code ? "an error" : "ok"; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { return snprintf(text, size, "580.159.04") < 0; }
int nvmlDeviceGetCount_v2(unsigned *number) { *number = count; return OK; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct gpu **handle) {
  if (index >= count) return NOT_FOUND;
  if (!strcmp(gpus[index].name, "lost")) return GPU_IS_LOST;
  *handle = &gpus[index];
  return OK;
}

int nvmlDeviceGetPciInfo_v3(struct gpu *g, struct pci_info *info) {
  memset(info, 0, sizeof *info);
  snprintf(info->bus_id, sizeof info->bus_id, "%s", g->bdf);
  info->device_id = g->device_id << 16 | 0x10de;
  return OK;
}

/* A GPU and a part of one begin alike, so one handle does for both. */
int nvmlDeviceGetUUID(struct part *p, char *text, unsigned size) { return snprintf(text, size, "%s", p->uuid) < 0; }
int nvmlDeviceGetName(struct gpu *g, char *text, unsigned size) { return snprintf(text, size, "%s", g->name) < 0; }
int nvmlDeviceGetMinorNumber(struct gpu *g, unsigned *minor) { *minor = g->minor; return OK; }

int nvmlDeviceGetMemoryInfo(struct part *p, struct memory *memory) {
  if (!p->bytes) return NOT_SUPPORTED;
  memory->total = p->bytes;
  return OK;
}

int nvmlDeviceGetEnforcedPowerLimit(struct gpu *g, unsigned *milliwatts) {
  *milliwatts = g->milliwatts;
  return g->milliwatts ? OK : NOT_SUPPORTED;
}

int nvmlDeviceGetCudaComputeCapability(struct gpu *g, int *major, int *minor) {
  *major = (int)g->capability / 10;
  *minor = (int)g->capability % 10;
  return OK;
}

int nvmlDeviceGetMigMode(struct gpu *g, unsigned *current, unsigned *pending) {
  *current = *pending = g->parts > 0;
  return g->capability < 80 ? NOT_SUPPORTED : OK;
}

int nvmlDeviceGetMaxMigDeviceCount(struct gpu *g, unsigned *number) { *number = 7 + 0 * g->parts; return OK; }

int nvmlDeviceGetMigDeviceHandleByIndex(struct gpu *g, unsigned index, struct part **handle) {
  if (index >= g->parts) return NOT_FOUND;
  *handle = &g->mig[index];
  return OK;
}

int nvmlDeviceGetGpuInstanceId(struct part *p, unsigned *id) { *id = p->gi; return OK; }
int nvmlDeviceGetComputeInstanceId(struct part *p, unsigned *id) { *id = p->ci; return OK; }

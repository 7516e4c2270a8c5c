"""Topology files of NCCL and hwloc: read as they are meant, refused when cut or silent about what matters."""

from __future__ import annotations

import pytest

from pipeline.hardware.hwloc_xml import parse_hwloc
from pipeline.hardware.nccl_xml import parse_nccl_topology
from pipeline.hardware.topology import (
    Distance,
    Gpu,
    LinkLayer,
    Nic,
    NodeSnapshot,
    NumaNode,
    Port,
    TopologyError,
    parse_mask,
)

NCCL = """
<system version="1">
  <cpu numaid="1" affinity="000000f0,00000000">
    <pci busid="0000:20:00.0" class="0x030200" vendor="0x10de"/>
    <pci busid="0000:21:00.0" class="0x020000" vendor="0x1d0f"/>
  </cpu>
  <cpu numaid="0" affinity="0000000f">
    <pci busid="ffff:ff:01.0" class="0x060400">
      <pci busid="0000:10:00.0" class="0x030200"><gpu dev="0" sm="90"/></pci>
      <pci busid="0000:11:00.0" class="0x020700" vendor="0x15b3">
        <nic><net name="mlx5_0" dev="0" speed="400000" port="1"/></nic>
      </pci>
      <pci busid="0000:12:00.0" class="0x010802"/>
    </pci>
  </cpu>
</system>
"""

HWLOC = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
  <object type="Machine" os_index="0" allowed_cpuset="0x0000000e" allowed_nodeset="0x00000005">
    <object type="Package" os_index="0" cpuset="0x0000000f" nodeset="0x00000007">
      <object type="NUMANode" os_index="0" cpuset="0x0000000f" local_memory="4096"/>
      <object type="NUMANode" subtype="GPUMemory" os_index="2" cpuset="0x0000000f" local_memory="1024"/>
      <object type="L3Cache" cpuset="0x0000000f">
        <object type="Core"><object type="PU" os_index="0"/><object type="PU" os_index="2"/></object>
        <object type="Core"><object type="PU" os_index="1"/><object type="PU" os_index="3"/></object>
      </object>
    </object>
    <object type="Group" cpuset="0x0000000f" nodeset="0x00000001">
      <object type="Bridge" bridge_type="0-1" bridge_pci="0000:[10-1f]">
        <object type="Bridge" bridge_type="1-1" pci_busid="0000:10:01.0" pci_type="0604 [8086:2030] [0:0] 07">
          <object type="PCIDev" pci_busid="0000:11:00.0" pci_type="0302 [10de:2335] [10de:1] a1">
            <info name="PCIDevice" value="H200"/>
            <object type="OSDev" name="nvml0" osdev_type="1">
              <info name="GPUModel" value="NVIDIA H200"/><info name="NVIDIAUUID" value="GPU-1"/>
            </object>
          </object>
        </object>
        <object type="Bridge" bridge_type="1-1" pci_busid="0000:10:02.0" pci_type="0604 [8086:2030] [0:0] 07">
          <object type="PCIDev" pci_busid="0000:12:00.0" pci_type="0207 [15b3:1021] [15b3:1] 00">
            <object type="OSDev" name="ib0" osdev_type="2"/>
            <object type="OSDev" name="mlx5_0" osdev_type="3"><info name="Port1State" value="4"/></object>
          </object>
          <object type="PCIDev" pci_busid="0000:13:00.0" pci_type="0300 [1a03:2000] [1a03:2000] 41"/>
        </object>
      </object>
    </object>
  </object>
  <distances2 type="NUMANode" nbobjs="2" kind="5" indexing="os">
    <indexes length="4">2 0 </indexes>
    <u64values length="9">10 80 </u64values>
    <u64values length="9">80 10 </u64values>
  </distances2>
</topology>
"""


@pytest.mark.parametrize(
    ("mask", "ids"),
    [("0x0000000f", (0, 1, 2, 3)), ("0x1,,0x1", (0, 64)), ("00000001,00000000", (32,)), ("0x0", ()), ("", ())],
)
def test_masks(mask: str, ids: tuple[int, ...]) -> None:
    assert parse_mask(mask) == ids


@pytest.mark.parametrize("mask", ["0xg", "123456789", "0x1 0x2", "-1"])
def test_what_is_no_mask(mask: str) -> None:
    with pytest.raises(TopologyError, match="no mask of 32-bit words"):
        parse_mask(mask)


def test_nccl_file() -> None:
    low = ("numa0", "ffff:ff:01.0")
    snapshot = parse_nccl_topology(NCCL)
    assert snapshot == NodeSnapshot(
        nodes=(NumaNode(id=0, cpus=(0, 1, 2, 3)), NumaNode(id=1, cpus=(36, 37, 38, 39))),
        cores=((0,), (1,), (2,), (3,), (36,), (37,), (38,), (39,)),
        gpus=(
            Gpu(bdf="0000:20:00.0", numa_node=1, pci_path=("numa1", "0000:20:00.0")),
            Gpu(bdf="0000:10:00.0", numa_node=0, pci_path=(*low, "0000:10:00.0")),
        ),
        nics=(
            Nic(
                name="0000:21:00.0",
                bdf="0000:21:00.0",
                numa_node=1,
                pci_path=("numa1", "0000:21:00.0"),
                ports=(Port(number=1, active=True, rate_gbps=None, link_layer=LinkLayer.unspecified),),
            ),
            Nic(
                name="mlx5_0",
                bdf="0000:11:00.0",
                numa_node=0,
                pci_path=(*low, "0000:11:00.0"),
                ports=(Port(number=1, active=True, rate_gbps=400, link_layer=LinkLayer.infiniband),),
            ),
        ),
        allowed=(0, 1, 2, 3, 36, 37, 38, 39),
        mems=(0, 1),
        job_gpus=("0000:20:00.0", "0000:10:00.0"),
        untold=("cpus",),
    )
    assert snapshot.device_distance(snapshot.gpus[1], snapshot.nics[1]) is Distance.PIX
    assert snapshot.device_distance(snapshot.gpus[0], snapshot.nics[0]) is Distance.PHB


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("</system>", "", "no element found: line .*: the file is cut or no XML"),
        ("system", "topology", "the outermost element is <topology>, must be <system>"),
        (' affinity="0000000f"', "", "<cpu numaid='0'> has no affinity"),
        ('"0000000f"', '"0000000g"', "'0000000g' is no mask"),
        ('numaid="0"', 'numaid="-1"', "<cpu> with numaid '-1'"),
        (' class="0x010802"', "", "<pci busid='0000:12:00.0'> has no class"),
        ('busid="0000:12:00.0"', 'busid="12"', "'12' is no PCI bus id"),
        ('"0000000f"', '"000000f0,00000000"', "CPU in the cores 36, 37, 38, 39 appears twice"),
    ],
)
def test_nccl_file_that_is_cut_or_silent_is_refused(old: str, new: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        parse_nccl_topology(NCCL.replace(old, new))


def test_hwloc_file() -> None:
    snapshot = parse_hwloc(HWLOC)
    assert snapshot == NodeSnapshot(
        nodes=(
            NumaNode(id=0, cpus=(0, 1, 2, 3), memory_total_bytes=4096, distances=(10, 80)),
            NumaNode(id=2, cpus=(), memory_total_bytes=1024, distances=(80, 10)),
        ),
        cores=((0, 2), (1, 3)),
        packages=((0, 1, 2, 3),),
        l3_groups=((0, 1, 2, 3),),
        gpus=(
            Gpu(
                bdf="0000:11:00.0",
                uuid="GPU-1",
                name="NVIDIA H200",
                pci_device_id="2335",
                numa_node=0,
                local_cpus=(0, 1, 2, 3),
                pci_path=("pci0000:10", "0000:10:01.0", "0000:11:00.0"),
            ),
        ),
        nics=(
            Nic(
                name="mlx5_0",
                bdf="0000:12:00.0",
                numa_node=0,
                pci_path=("pci0000:10", "0000:10:02.0", "0000:12:00.0"),
                ports=(Port(number=1, active=True, rate_gbps=None, link_layer=LinkLayer.infiniband),),
            ),
        ),
        allowed=(1, 2, 3),
        mems=(0, 2),
        job_gpus=("0000:11:00.0",),
    )
    assert snapshot.device_distance(snapshot.gpus[0], snapshot.nics[0]) is Distance.PHB


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("</topology>", "", "no element found: line .*: the file is cut or no XML"),
        ('version="2.0"', 'version="1.0"', "<topology> of version 1.0, must be <topology> of version 2"),
        ('allowed_cpuset="0x0000000e"', "", "a Machine without allowed_cpuset"),
        ('"PU" os_index="3"', '"PU"', "a PU with os_index ''"),
        ('<u64values length="9">80 10 </u64values>', "", "2 distances for 2 nodes"),
        ("0000:[10-1f]", "?", r"a host bridge with bridge_pci '\?'"),
        ('pci_busid="0000:11:00.0"', "", "'' is no PCI bus id"),
    ],
)
def test_hwloc_file_that_is_cut_or_silent_is_refused(old: str, new: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        parse_hwloc(HWLOC.replace(old, new))

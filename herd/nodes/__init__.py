"""Tablespaces on many machines: nodes that run replicas, and the commands over them."""

from herd.nodes.commands import SpaceCommands
from herd.nodes.node import Node
from herd.nodes.settings import NodeSettings

__all__ = ["Node", "NodeSettings", "SpaceCommands"]

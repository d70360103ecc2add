"""The node over HTTP: one application of the broker's interfaces, the store's, and the console."""

from herdbook.http.app import create_app
from herdbook.http.house import House, house_of
from herdbook.http.settings import WebSettings

__all__ = ["House", "WebSettings", "create_app", "house_of"]

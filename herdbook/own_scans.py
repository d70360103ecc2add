"""Each scan of a Python data source reads by filters of its own.

In Spark 4.1 to 4.3 a frame that was loaded keeps the filters that were pushed into it last, and
reads by them whatever comes next: after `frame.filter("id < 10").count()` a `frame.count()` gives
10. (Later versions keep them with the scan.) So a rule at the end of the optimizer gives each scan
a source of its own, pushes the scan's filters into that, and leaves the shared one alone. Spark
brings the compiler for it: Janino, by which it compiles queries.

Invariants:
- Filters are pushed only where this rule is at work, or Spark needs none.
- The rule is added only where Spark has what it reaches for: it works on other people's scans, too.
- Without it every read is right and only slower: pages are left out by the option `where` alone.
"""

import logging
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_logger = logging.getLogger(__name__)
_PACKAGE: Final = "org.apache.spark.sql.execution.datasources.v2"
_RULE: Final = "herdbook.OwnScans"
_LEAKS: Final = "setReadInfo"
_FIELDS: Final = (
    *(("PythonScan", name) for name in ("ds", "shortName", "outputSchema", "options")),
    ("PythonScan", "supportedFilters"),
    ("PythonDataSourceV2", "dataSourceInPython"),
)
_JAVA: Final = """
package herdbook;

import java.lang.reflect.Field;
import java.util.Collections;
import java.util.Map;
import java.util.Set;
import java.util.WeakHashMap;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScanBuilder;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

public class OwnScans extends Rule {
  private final Set own = Collections.newSetFromMap(new WeakHashMap());
  private final Map whole = new WeakHashMap();

  public TreeNode apply(TreeNode plan) {
    return plan.transform(new Each(this));
  }

  synchronized Object owned(DataSourceV2ScanRelation relation) throws Exception {
    PythonScan scan = (PythonScan) relation.scan();
    if (own.contains(scan)) return relation;
    PythonDataSourceV2 shared = (PythonDataSourceV2) field(PythonScan.class, "ds").get(scan);
    String name = (String) field(PythonScan.class, "shortName").get(scan);
    StructType schema = (StructType) field(PythonScan.class, "outputSchema").get(scan);
    CaseInsensitiveStringMap options =
        (CaseInsensitiveStringMap) field(PythonScan.class, "options").get(scan);
    Filter[] filters = (Filter[]) field(PythonScan.class, "supportedFilters").get(scan);
    PythonDataSourceV2 source =
        filters.length == 0 ? (PythonDataSourceV2) whole.get(shared) : null;
    if (source == null) {
      source = new PythonDataSourceV2();
      source.setShortName(name);
      Field made = field(PythonDataSourceV2.class, "dataSourceInPython");
      made.set(source, made.get(shared));
      if (filters.length == 0) whole.put(shared, source);
    }
    PythonScanBuilder builder = new PythonScanBuilder(source, name, schema, options);
    if (filters.length > 0 && builder.pushFilters(filters).length > 0) {
      throw new IllegalStateException("the source took other filters than before");
    }
    Object replaced = builder.build();
    own.add(replaced);
    Object[] parts = new Object[relation.productArity()];
    for (int place = 0; place < parts.length; place++) {
      Object part = relation.productElement(place);
      parts[place] = part == scan ? replaced : part;
    }
    return relation.makeCopy(parts);
  }

  static Field field(Class type, String name) throws Exception {
    Field found = type.getDeclaredField(name);
    found.setAccessible(true);
    return found;
  }

  static class Each extends scala.runtime.AbstractPartialFunction {
    private final OwnScans rule;

    Each(OwnScans rule) {
      this.rule = rule;
    }

    public boolean isDefinedAt(Object node) {
      return node instanceof DataSourceV2ScanRelation
          && ((DataSourceV2ScanRelation) node).scan() instanceof PythonScan;
    }

    public Object applyOrElse(Object node, scala.Function1 otherwise) {
      if (!isDefinedAt(node)) return otherwise.apply(node);
      try {
        return rule.owned((DataSourceV2ScanRelation) node);
      } catch (RuntimeException error) {
        throw error;
      } catch (Exception error) {
        throw new IllegalStateException(error);
      }
    }
  }
}
"""


def keeps_scans_apart(spark: "SparkSession") -> bool:
    """Whether filters may be pushed in this session, as Spark is or by a rule that it gets now.

    False where the driver is another process (Spark Connect), or Spark is one that neither holds.
    """
    jvm: Any = getattr(spark, "_jvm", None)
    if jvm is None:
        return False
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    try:
        source = jvm.java.lang.Class.forName(f"{_PACKAGE}.python.PythonDataSourceV2")
        if all(method.getName() != _LEAKS for method in source.getMethods()):
            return True
        for kind, field in _FIELDS:
            jvm.java.lang.Class.forName(f"{_PACKAGE}.python.{kind}").getDeclaredField(field)
        _add_rule(jvm, spark)
    except Py4JError as error:
        _logger.warning("filters of frames are not pushed, use the option where: %s", error)
        return False
    return True


def _add_rule(jvm: Any, spark: Any) -> None:
    """Give the session the rule, unless it has it."""
    methods = spark._jsparkSession.experimental()
    rules = list(jvm.scala.jdk.javaapi.CollectionConverters.asJava(methods.extraOptimizations()))
    if any(rule.getClass().getName() == _RULE for rule in rules):
        return
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.Thread.currentThread().getContextClassLoader())
    compiler.cook(_JAVA)
    rule = compiler.getClassLoader().loadClass(_RULE).newInstance()
    wanted = jvm.java.util.ArrayList()
    for one in (*rules, rule):
        wanted.add(one)
    chosen = jvm.scala.jdk.javaapi.CollectionConverters.asScala(wanted).toSeq()
    getattr(methods, "extraOptimizations_$eq")(chosen)
